"""On ``PYTHONPATH`` of started servers: they sleep where vLLM would spin, on cores that other tests need.

As in forked ones (``tests/exactness/preloaded.py``). On some kernels, processes that yield in turn keep all others from
running for half a minute.
"""

import os
import time

os.sched_yield = lambda: time.sleep(1e-4)
