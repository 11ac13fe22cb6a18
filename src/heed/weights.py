"""How the decoder engine may keep the weights of dense layers."""

from __future__ import annotations

# In the order of HEED_EACH_PACK in native/include/heed_decoder.h: a place is the number of the format.
WEIGHTS = ("float32", "bfloat16", "int8", "int4")
# Likewise how it may keep keys and values: HEED_EACH_CACHE.
CACHES = ("float32", "bfloat16", "int8")
# Those of a beam search.
CACHES_OF_BEAMS = CACHES[:2]
