from penstock.worker.engine.machine.cpu_limits import available_cores, cpu_quotas


def test_the_tightest_control_group_around_a_process_counts(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/pods/worker\n")
    cgroups = tmp_path / "cgroup"
    (cgroups / "pods" / "worker").mkdir(parents=True)
    (cgroups / "pods" / "cpu.max").write_text("800000 100000\n")
    (cgroups / "pods" / "worker" / "cpu.max").write_text("250000 100000\n")
    (cgroups / "cpu.max").write_text("max 100000\n")
    assert min(cpu_quotas(membership, cgroups)) == 2.5


def test_without_control_groups_all_cores_are_available(tmp_path):
    assert cpu_quotas(tmp_path / "none", tmp_path) == [float("inf")]
    assert available_cores() >= 1
