"""Imported last by a fork server: what it has imported is then no garbage that its children look through, whenever they
collect (half a second each time), and whose pages they would copy for that."""

import gc

gc.collect()
gc.freeze()
