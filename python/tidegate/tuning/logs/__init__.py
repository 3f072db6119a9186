"""Reading the logs of servers: where they come from, what they are written in, what they hold."""
