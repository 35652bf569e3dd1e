"""Checks of the forms that requests ask for, before a request waits: a caller learns at once what is wrong."""

from hashlib import blake2b

from penstock.chassis.errors import InvalidArgument
from penstock.edge.text.executor import SMALL_INPUT_BYTES, TokenizerPools
from penstock.mesh.form_grammar import FormUnsupported, check_form
from penstock.mesh.forms import FORM_UNSUPPORTED, Form, form_message

REMEMBERED_FORMS = 4_096
DIGEST_BYTES = 16
MAX_SMALL_FORM_BYTES = 2_048  # a larger one is checked beside large prompts, as it may take as long


class FormRejected(InvalidArgument):
    """No worker of the model would enforce the form."""

    default_reason = FORM_UNSUPPORTED

    def __init__(self, error: FormUnsupported, field: str = "form") -> None:
        super().__init__(str(error), field=field)


class FormChecks:
    """Remembers the forms that passed, as the same few forms come with most requests."""

    def __init__(self, pools: TokenizerPools) -> None:
        self._pools = pools
        self._passed: dict[bytes, None] = {}  # digests, the oldest first

    async def check(self, form: Form, field: str) -> None:
        """Raise FormRejected for a form that workers would reject. `field` of the request states the form."""
        digest = blake2b(form_message(form).SerializeToString(deterministic=True), digest_size=DIGEST_BYTES).digest()
        if digest in self._passed:
            return
        size = 0 if form.size_bytes <= MAX_SMALL_FORM_BYTES else SMALL_INPUT_BYTES + 1
        try:
            await self._pools.run(size, lambda: check_form(form))
        except FormUnsupported as error:
            raise FormRejected(error, field) from error
        self._passed[digest] = None
        if len(self._passed) > REMEMBERED_FORMS:
            del self._passed[next(iter(self._passed))]
