"""Errors of the text codec: invalid input of a caller, or an unusable model card."""

from penstock.chassis.errors import Internal, InvalidArgument


class TemplateRefused(InvalidArgument):
    """The model's chat template cannot render these messages. Other messages or raw text may work."""

    default_reason = "CHAT_TEMPLATE_REFUSED"


class PromptEmpty(InvalidArgument):
    """The prompt has no token."""

    default_reason = "PROMPT_EMPTY"


class TokenUnknown(InvalidArgument):
    """A prompt of token ids has an id outside the model's vocabulary."""

    default_reason = "TOKEN_UNKNOWN"


class ModelTextUnusable(Internal):
    """The model's tokenizer or chat template is unusable for every request. The operator must replace it."""

    default_reason = "MODEL_TEXT_UNUSABLE"
