"""The first part of `vigneron validate`: a recipe's data, and the user's reward on it. Imports neither torch nor
transformers, so that most mistakes are found within a second or two."""

from vigneron.config import Config
from vigneron.errors import visible
from vigneron.run_data.load import Data, load_data
from vigneron.training.setup.quick_checks import quick_checks


def validate_data(config: Config) -> tuple[Data, list[str]]:
    """The data, and the lines to print."""
    data = load_data(config)
    return data, [f"note: {visible(text)}" for text in (*data.notices, *quick_checks(config, data))]
