"""Onlookers see every operator that torch runs, without torch's compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Onlooker(TorchDispatchMode):
    """A mode that torch's compiler has no part in: neither does the mode keep it from compiling, nor does torch import
    it for the mode's sake, which takes as long as importing torch, and go through it at every operator."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch compiles what runs under the mode all the same: what is looked for is not in that."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
