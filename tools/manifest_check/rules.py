"""All checks of one overlay."""

from manifest_check.api_rules import api_faults
from manifest_check.calls import call_faults
from manifest_check.objects import Manifests, Object, without_nulls
from manifest_check.pod_security import security_faults
from manifest_check.references import reference_faults
from manifest_check.schemas import schema_faults
from manifest_check.tiers import tier_faults


def manifest_faults(objects: list[Object]) -> list[str]:
    """Return every fault found. Rules other than schemas run only if all objects are valid by their schemas."""
    objects = [without_nulls(each) for each in objects]
    if faults := [text for each in objects for text in schema_faults(each)]:
        return faults
    manifests = Manifests(objects)
    checks = (api_faults, security_faults, reference_faults, call_faults, tier_faults)
    return [text for check in checks for text in check(manifests)]
