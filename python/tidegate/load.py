"""Limits by load: clients get a part of their limits while the service is under load.

    from tidegate.load import EventLoopLag, LoadShedding, SystemLoad, highest

    limiter = tidegate.Limiter(rules=rules, load=LoadShedding(highest(SystemLoad(), lag)))

SystemLoad needs the extra ``load``: ``pip install 'tidegate[load]'``.
"""

from tidegate.limiter.load.measures import EventLoopLag, QueueWait, SystemLoad, highest
from tidegate.limiter.load.shedding import LoadShedding

__all__ = ["EventLoopLag", "LoadShedding", "QueueWait", "SystemLoad", "highest"]
