"""Request planner: chooses the version of the model for a request and tokenizes its prompt for it."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.planning import plan_generation
from penstock.edge.request.spec import RequestSpec, TextInput, TokenInput
from penstock.edge.text.executor import TokenizerPools

MAX_INLINE_PROMPT_CHARS = 128  # 0.5 us each; a thread costs 90 us of CPU and turns of the event loop
CHECKED_IDS_PER_TOKENIZED_CHAR = 8  # token ids checked in the time of tokenizing one character
_seeds = random.SystemRandom()


class RequestPlanner:
    """Plans requests. Long prompts are tokenized in a thread."""

    def __init__(self, catalog: ModelCatalog, pools: TokenizerPools, *, default_output_tokens: int) -> None:
        self._catalog = catalog
        self._pools = pools
        self._default_output_tokens = default_output_tokens

    async def plan(self, spec: RequestSpec, size_bytes: int) -> GenerationPlan:
        """Plan a request of `size_bytes`. Raises PenstockError.

        A request that continues an answer stays on the version that began it, because the token ids of another
        vocabulary have another meaning, and other weights continue with another text.
        """
        model = await self._catalog.choose(spec.model, spec.model_version if spec.resume_ids else "")
        make_plan = partial(
            plan_generation,
            spec,
            model,
            now=datetime.now(UTC),
            default_output_tokens=self._default_output_tokens,
            draw_seed=partial(_seeds.getrandbits, 64),
        )
        return make_plan() if _is_planned_inline(spec) else await self._pools.run(size_bytes, make_plan)

    async def plan_again(self, spec: RequestSpec, size_bytes: int, former: GenerationPlan) -> GenerationPlan:
        """Plan a request without output for a version that is served now. Seed and granted output stay the same."""
        plan = await self.plan(replace(spec, seed=former.sampling.seed), size_bytes)
        return replace(plan, max_output_tokens=min(plan.max_output_tokens, former.max_output_tokens))


def _is_planned_inline(spec: RequestSpec) -> bool:
    """Return whether planning the request takes less time than a switch to a thread."""
    match spec.input:
        case TextInput(text):
            units = len(text)
        case TokenInput(ids):
            units = len(ids) // CHECKED_IDS_PER_TOKENIZED_CHAR
        case _:
            return False
    return units <= MAX_INLINE_PROMPT_CHARS and not spec.resume_ids
