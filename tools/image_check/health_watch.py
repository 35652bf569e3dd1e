"""Run by an image's own Python: reads gRPC addresses from stdin, prints each one once its health is SERVING."""

import sys
from threading import Thread

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub


def watch(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        for answer in HealthStub(channel).Watch(HealthCheckRequest(), wait_for_ready=True):
            if answer.status == HealthCheckResponse.SERVING:
                sys.stdout.write(f"{address}\n")
                sys.stdout.flush()
                return


if __name__ == "__main__":
    for line in sys.stdin:
        Thread(target=watch, args=(line.strip(),), daemon=True).start()
