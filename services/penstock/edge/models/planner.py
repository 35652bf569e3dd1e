"""Request planner: chooses the version of the model for a request and tokenizes its prompt for it."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.form_checks import FormChecks
from penstock.edge.models.loaded_model import LoadedModel
from penstock.edge.models.planning import plan_generation
from penstock.edge.request.spec import ChatInput, RequestSpec, TextInput, TokenInput
from penstock.edge.text.executor import TokenizerPools

MAX_INLINE_PROMPT_CHARS = 128  # 0.5 us each; a thread costs 90 us of CPU and turns of the event loop
MAX_INLINE_MESSAGES = 8  # a simple template renders them in 30 us
CHECKED_IDS_PER_TOKENIZED_CHAR = 8  # token ids checked in the time of tokenizing one character
_seeds = random.SystemRandom()


class RequestPlanner:
    """Plans requests. Long prompts are tokenized in a thread."""

    def __init__(self, catalog: ModelCatalog, pools: TokenizerPools, *, default_output_tokens: int) -> None:
        self._catalog = catalog
        self._pools = pools
        self._default_output_tokens = default_output_tokens
        self._forms = FormChecks(pools)

    async def plan(
        self, spec: RequestSpec, size_bytes: int, on_begun: Callable[[], None] | None = None
    ) -> GenerationPlan:
        """Plan a request of `size_bytes`. Raises PenstockError. `on_begun` is called in the thread that tokenizes.

        A request that continues an answer stays on the version that began it, because the token ids of another
        vocabulary have another meaning, and other weights continue with another text. All embeddings of one call are
        of one version, too.
        """
        model = await self._catalog.choose(spec.model, spec.model_version if spec.resume_ids or spec.embeds else "")
        can_enforce = model.enforces_forms and not spec.ignore_eos
        form = model.codec.enforced_form(spec.input, spec.form, can_enforce=can_enforce)
        if form:
            await self._forms.check(form, field="form" if form is spec.form else "tools")
        make_plan = partial(
            plan_generation,
            spec,
            model,
            form=form,
            now=datetime.now(UTC),
            default_output_tokens=self._default_output_tokens,
            draw_seed=partial(_seeds.getrandbits, 64),
        )
        if _is_planned_inline(spec, model):
            return make_plan()
        return await self._pools.run(size_bytes, _announced(make_plan, on_begun) if on_begun else make_plan)

    async def plan_or_error(
        self, spec: RequestSpec, size_bytes: int, on_begun: Callable[[], None]
    ) -> GenerationPlan | Exception:
        """Return the error of `plan` in place of raising it, for a task in a group that must not end with it."""
        try:
            return await self.plan(spec, size_bytes, on_begun)
        except Exception as error:  # noqa: BLE001  # the caller raises it
            return error

    async def plan_again(self, spec: RequestSpec, size_bytes: int, former: GenerationPlan) -> GenerationPlan:
        """Plan a request without output for a version that is served now. Seed and granted output stay the same."""
        plan = await self.plan(replace(spec, seed=former.sampling.seed), size_bytes)
        return replace(plan, max_output_tokens=min(plan.max_output_tokens, former.max_output_tokens))


def _announced(work: Callable[[], GenerationPlan], on_begun: Callable[[], None]) -> Callable[[], GenerationPlan]:
    def announce_and_work() -> GenerationPlan:
        on_begun()
        return work()

    return announce_and_work


def _is_planned_inline(spec: RequestSpec, model: LoadedModel) -> bool:
    """Return whether planning the request takes less time than a switch to a thread."""
    match spec.input:
        case TextInput(text):
            units = len(text)
        case TokenInput(ids):
            units = len(ids) // CHECKED_IDS_PER_TOKENIZED_CHAR
        case ChatInput(messages, tools):
            if tools or len(messages) > MAX_INLINE_MESSAGES or not model.renders_inline:
                return False
            units = sum(len(each.content) for each in messages)
    return units <= MAX_INLINE_PROMPT_CHARS and not spec.resume_ids
