"""A worker that generates a text which the test has written."""

from dataclasses import dataclass

from edge_mesh import TOKENIZER, FakeWorker
from penstock.mesh.v1.worker_pb2 import ExecuteResponse, GetModelCardResponse, RunFinished, RunTimes, Step
from penstock.v1.inference_pb2 import FINISH_REASON_STOP
from tiny_model import EOS_ID


@dataclass(eq=False)
class ScriptedWorker(FakeWorker):
    """Generates a text and ends."""

    text: str = ""
    template: str = ""  # appended to the chat template

    async def GetModelCard(self, request, context):
        response = await super().GetModelCard(request, context)
        response.card.enforces_forms = True
        response.card.chat_template += self.template
        response.card.context_length = 2_048
        return GetModelCardResponse(card=response.card)

    def send_tokens(self, handle, pause_at=None):
        peer, start, _ = self.runs.pop(handle)
        ids = [*TOKENIZER.encode(self.text).ids, EOS_ID][start.emitted :]
        for index, token_id in enumerate(ids, start.emitted):
            step = Step(handles=[handle], token_ids=[token_id], indexes=[index], step=index + 1)
            peer.send(ExecuteResponse(step=step))
        finished = RunFinished(
            handle=handle, reason=FINISH_REASON_STOP, output_tokens=len(ids), times=RunTimes(prefill={"nanos": 1})
        )
        peer.send(ExecuteResponse(finished=finished))


def prompt_of(worker):
    """The prompt of the run that was started last."""
    return TOKENIZER.decode(list(worker.starts[-1].token_ids), skip_special_tokens=False)
