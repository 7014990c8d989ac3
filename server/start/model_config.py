"""Reads the model's config for the command, before an engine does."""

from argparse import Namespace

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.config.text_config import TextConfig
from ropeswitch.model_patches.switch.config.text_config import text_config as read
from ropeswitch.server.start.model_folder import check_fields, check_model_folder
from ropeswitch.server.start.refusals import root_cause


def text_config(args: Namespace) -> TextConfig:
    """Return the model's Hugging Face text config with the user's ``--hf-overrides`` applied, as the engine would see it.

    Raises:
        UsageError: when the model or its config cannot be read.
    """
    source = args.hf_config_path or args.model
    check_model_folder(source)
    check_fields("--hf-overrides", args.hf_overrides or {})
    try:
        return read(args)
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        # Only the user's model is read above, and its own code may raise any error.
        raise UsageError(f"MODEL: cannot read the config of {source!r}: {root_cause(error)}") from error
