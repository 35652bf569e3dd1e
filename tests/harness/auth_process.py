"""An auth process of its own on a SQLite file, with a client for each of its services."""

from contextlib import asynccontextmanager

from auth_server import DEV_KEY, AuthProcess, FakeClock
from penstock.chassis.channels import channel
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceStub
from penstock.mesh.v1.responses_pb2_grpc import ResponseStoreServiceStub
from penstock.v1.admin_pb2_grpc import AdminStub
from tier_process import address_of, tier_process


@asynccontextmanager
async def auth_process(folder, **more):
    async with tier_process("auth", STORE=str(folder / "auth.sqlite"), DEV_KEY=DEV_KEY, **more) as process:
        address = await address_of(process)
        async with channel(address) as to_auth, channel(process.admin_address) as to_admin:
            stubs = AdminStub(to_admin), AdmissionServiceStub(to_auth)
            responses = ResponseStoreServiceStub(to_auth)
            yield process, AuthProcess(None, address, FakeClock(), *stubs, responses=responses)
