"""Shapes and types of the tensor maths are checked at run time, in tests only: importing this turns it on.

Not where there is a GPU: torch.compile, which is tested there, cannot trace the checks.
"""

import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():
    install_import_hook("vigneron.core", "beartype.beartype")
