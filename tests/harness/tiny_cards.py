"""Model cards with the tiny tokenizer."""

import zlib

from penstock.mesh.v1.worker_pb2 import ModelCard
from tiny_model import CHAT_TEMPLATE, EOS_ID, tiny_tokenizer

VOCABULARY = 304


def tiny_card(tokenizer=None, chat_template=CHAT_TEMPLATE):
    packed = zlib.compress((tokenizer or tiny_tokenizer(VOCABULARY)).to_str().encode())
    return ModelCard(
        tokenizer_json_zlib=packed, vocabulary_size=VOCABULARY, eos_token_ids=[EOS_ID], chat_template=chat_template
    )
