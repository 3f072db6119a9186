"""Pictures: the frames behind them, how they look, and how they are drawn."""
