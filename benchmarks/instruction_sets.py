"""Holds heed and its peers to one instruction set."""

from __future__ import annotations

# Variables of oneDNN (TensorFlow, PyTorch, CTranslate2), PyTorch, MKL, CTranslate2 and OpenBLAS.
_NAMES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "CT2_FORCE_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
# PyTorch, MKL and CTranslate2 do not tell AVX-512 with and without bfloat16 apart.
# Sets without an entry are the only or the best ones of their machines.
_VALUES = {
    "baseline": ("SSE41", "SSE41", "default", "SSE4_2", "GENERIC", "NEHALEM"),
    "avx2": ("AVX2", "AVX2", "avx2", "AVX2", "AVX2", "HASWELL"),
    "avx512": (*["AVX512_CORE_VNNI"] * 2, "avx512", "AVX512", "AVX512", "SKYLAKEX"),
    "avx512_bf16": (*["AVX512_CORE_BF16"] * 2, "avx512", "AVX512", "AVX512", "SKYLAKEX"),
}


def environment(instruction_set: str | None) -> dict[str, str]:
    """Return the variables that hold heed and its peers to an instruction set; none for None."""
    if instruction_set is None:
        return {}
    limits = dict(zip(_NAMES, _VALUES.get(instruction_set, ()), strict=False))
    return {"HEED_INSTRUCTION_SET": instruction_set, **limits}
