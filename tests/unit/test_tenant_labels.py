"""The busiest tenants have labels of their own, and their number is bounded."""

from penstock.chassis.observability.tenant_labels import MAX_COUNTED, MAX_LABELS, OTHER, RANKED_EVERY, TenantLabels


def record(labels, **counts):
    """Record the given number of events of each tenant; return the last label of each."""
    return {tenant: [labels.record(tenant) for _ in range(count)][-1] for tenant, count in counts.items()}


def test_the_first_tenants_have_labels_and_further_ones_share_one():
    labels = TenantLabels()
    given = [labels.record(f"t{number}") for number in range(MAX_LABELS + 5)]
    assert given[:MAX_LABELS] == [f"t{number}" for number in range(MAX_LABELS)]
    assert given[MAX_LABELS:] == [OTHER] * 5
    assert (labels.label_of("t0"), labels.label_of("unseen")) == ("t0", OTHER)


def test_an_unknown_caller_has_the_empty_label():
    labels = TenantLabels()
    assert labels.record("") == ""
    assert labels.labelled == ()


def test_a_busier_tenant_takes_the_label_of_the_least_busy_one_which_is_reported():
    removed = []
    labels = TenantLabels(removed.append)
    record(labels, **{f"t{number}": 100 + number for number in range(MAX_LABELS)})
    assert record(labels, busy=RANKED_EVERY) == {"busy": "busy"}
    assert removed == ["t0"]
    assert labels.label_of("t0") == OTHER
    assert len(labels.labelled) == MAX_LABELS


def test_tenants_of_nearly_equal_load_do_not_alternate():
    removed = []
    labels = TenantLabels(removed.append)
    tenants = {f"t{number}": 1 for number in range(MAX_LABELS + 1)}
    for _ in range(2 * RANKED_EVERY // len(tenants)):
        record(labels, **tenants)
    assert removed == []


def test_old_events_count_less():
    labels = TenantLabels()
    record(labels, **{f"t{number}": 200 for number in range(MAX_LABELS)})
    record(labels, new=4 * RANKED_EVERY)
    assert labels.label_of("new") == "new"


def test_the_number_of_counted_tenants_is_bounded():
    labels = TenantLabels()
    for number in range(4 * RANKED_EVERY):
        labels.record(f"t{number}")
    assert len(labels._counts) <= MAX_COUNTED + RANKED_EVERY
    assert len(labels.labelled) == MAX_LABELS
