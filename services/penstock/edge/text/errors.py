"""What a model's text side refuses: the caller's input, or a card this edge cannot use."""

from penstock.chassis.errors import Internal, InvalidArgument


class TemplateRefused(InvalidArgument):
    """The model's chat template cannot render these messages; other messages, or raw text, can work."""

    default_reason = "CHAT_TEMPLATE_REFUSED"


class PromptEmpty(InvalidArgument):
    """Nothing to continue: the prompt has no token."""

    default_reason = "PROMPT_EMPTY"


class TokenUnknown(InvalidArgument):
    """A prompt sent as ids has one outside the model's vocabulary."""

    default_reason = "TOKEN_UNKNOWN"


class ModelTextUnusable(Internal):
    """The model's tokenizer or chat template cannot be used at all: an operator's matter, whatever the request."""

    default_reason = "MODEL_TEXT_UNUSABLE"
