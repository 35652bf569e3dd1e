"""Policies as text of the store: every value is kept, and text of a later release is read as far as it is known."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.identity.policy import NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.store.policies import policy_of, policy_text

LIMITS = st.builds(Limits, **{name: st.integers(0, 2**40) for name in Limits.__dataclass_fields__})
MODELS = st.text(min_size=1, max_size=8)
BUDGETS = st.lists(
    st.builds(Budget, st.sampled_from(BudgetPeriod), st.sampled_from(BudgetUnit), st.integers(1, 2**60)), max_size=4
)
POLICIES = st.builds(
    Policy,
    limits=LIMITS,
    allowed_models=st.lists(MODELS, max_size=3).map(tuple),
    allowed_regions=st.lists(MODELS, max_size=3).map(tuple),
    model_limits=st.dictionaries(MODELS, LIMITS, max_size=3).map(lambda found: tuple(found.items())),
    budgets=BUDGETS.map(tuple),
    soft_share=st.floats(0, 1, exclude_max=True),
    shadow=st.booleans(),
)


@given(policy=POLICIES)
def test_a_policy_is_read_as_it_was_written(policy):
    assert policy_of(policy_text(policy)) == policy


def test_the_default_policy_is_an_empty_text():
    assert policy_text(NO_POLICY) == ""
    assert policy_of("") is NO_POLICY


def test_values_that_only_a_later_release_knows_are_ignored():
    assert policy_of('{"shadow": true, "color": 7, "limits": {"tokens_per_minute": 5, "images": 1}}') == Policy(
        limits=Limits(tokens_per_minute=5), shadow=True
    )
