"""Streams a response with the OpenAI client: `python examples/openai_client.py [BASE_URL]`.

PENSTOCK_API_KEY has the key. BASE_URL is an edge's HTTP address or Envoy's, with `/v1`.
"""

import os
import sys

from openai import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7080/v1"


def main() -> None:
    client = OpenAI(base_url=BASE_URL, api_key=os.environ["PENSTOCK_API_KEY"])
    model = client.models.list().data[0].id
    stream = client.responses.create(
        model=model, input="Explain backpressure in simple terms", max_output_tokens=64, stream=True
    )
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type in {"response.completed", "response.incomplete"} and event.response.usage:
            print(f"\n{event.response.usage.output_tokens} tokens")


if __name__ == "__main__":
    main()
