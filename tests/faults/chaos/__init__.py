"""The fault campaign: faults of servers, networks and clients, under one load and one judge.

`fault.py` says what a fault is, `load.py` is the process that makes the calls, `judge.py` holds
the laws, `stage.py` brings a fault, its servers and the load together. The faults themselves are in
the modules `*_faults.py`.
"""
