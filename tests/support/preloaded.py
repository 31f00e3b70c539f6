"""What the fork server imports once, for all the processes that it starts."""

import peft  # noqa: F401
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

import vigneron.api
import vigneron.cli.main
import vigneron.report.html
import vigneron.report.terminal
import vigneron.training.setup.build  # noqa: F401
from support import speed  # noqa: F401
