"""Imported before torch: OpenMP reads its wait policy once, when torch loads it.

By default an OpenMP thread that has finished its share of a product spins until the others have finished theirs. If
another program keeps a core busy, the spinning thread takes the time that the last one needs: a training step on two
cores then takes three to six times as long as on one thread. Threads that sleep cost 2 % on an idle machine.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
