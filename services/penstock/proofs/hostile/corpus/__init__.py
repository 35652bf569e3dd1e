"""Short hostile cases, each with a rule that tells whether the mesh accepted it."""

from collections.abc import Callable, Iterator

from penstock.proofs.hostile.corpus.case import HostileCase
from penstock.proofs.hostile.corpus.grpc_requests import grpc_request_cases
from penstock.proofs.hostile.corpus.http2_requests import http2_request_cases
from penstock.proofs.hostile.corpus.http_framing import http_framing_cases
from penstock.proofs.hostile.corpus.http_requests import http_request_cases
from penstock.proofs.hostile.corpus.impersonation import impersonation_cases
from penstock.proofs.hostile.corpus.inner_services import inner_service_cases
from penstock.proofs.hostile.corpus.insiders import insider_cases
from penstock.proofs.hostile.corpus.malformed_messages import malformed_message_cases
from penstock.proofs.hostile.target import HostileTarget

CaseSource = Callable[[HostileTarget], Iterator[HostileCase]]

# Corpora by name. `insiders` runs after the honest load, the others beside it.
CORPORA: dict[str, CaseSource] = {
    "http-requests": http_request_cases,
    "http-framing": http_framing_cases,
    "grpc-requests": grpc_request_cases,
    "http2-requests": http2_request_cases,
    "malformed-messages": malformed_message_cases,
    "inner-services": inner_service_cases,
    "impersonation": impersonation_cases,
}
INSIDERS: dict[str, CaseSource] = {"insiders": insider_cases}
