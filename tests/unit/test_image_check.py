"""The instructions of a Dockerfile, read and followed in a folder."""

import pytest

from image_check.dockerfile import Dockerfile, DockerfileError
from image_check.environments import Builder, StepFailedError

DOCKERFILE = """\
# syntax=docker/dockerfile:1
FROM registry/python:3 AS python
ENV WORD=first

FROM python AS sources
WORKDIR /src
COPY one.txt ./
COPY folder folder

FROM sources AS packages
RUN mkdir -p /opt/penstock \\
 # a comment within
 && cp one.txt folder/two.txt /opt/penstock
RUN echo "$WORD" > /opt/penstock/word

FROM python AS edge
COPY --from=packages /opt/penstock /opt/penstock
CMD ["python", "-m", "edge"]
"""


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "folder" / "__pycache__").mkdir(parents=True)
    (tmp_path / "folder" / "__pycache__" / "two.pyc").touch()
    (tmp_path / "folder" / "two.txt").write_text("two")
    (tmp_path / "one.txt").write_text("one")
    return tmp_path


def read(sources, text):
    path = sources / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    return Dockerfile.read(path)


def built(sources, text, lines=None):
    return Builder(read(sources, text), sources, sources / "work", (lines if lines is not None else []).append).build(
        "packages"
    )


def test_an_image_is_a_stage_with_a_command_and_the_packages_of_another(sources):
    (image,) = read(sources, DOCKERFILE).images()
    assert (image.name, image.packages, image.command) == ("edge", "packages", ("python", "-m", "edge"))
    assert [each.name for each in read(sources, DOCKERFILE).lineage("packages")] == ["python", "sources", "packages"]


def test_a_stage_is_built_by_its_instructions_and_those_before_it(sources):
    packages = built(sources, DOCKERFILE)
    assert {each.name: each.read_text().strip() for each in packages.iterdir()} == {
        "one.txt": "one",
        "two.txt": "two",
        "word": "first",
    }
    assert packages == sources / "work" / "packages" / "opt" / "penstock"


def test_files_outside_the_build_context_are_not_copied(sources):
    built(sources, DOCKERFILE)
    assert not list((sources / "work").rglob("__pycache__"))


def test_an_instruction_that_fails_is_reported_with_its_output(sources):
    with pytest.raises(StepFailedError, match="no such thing"):
        built(sources, DOCKERFILE.replace("RUN echo", "RUN echo no such thing; false; echo"))


def test_instructions_after_apt_installs_a_missing_program_are_left_out(sources):
    lines = []
    instructions = "RUN apt-get update && apt-get install --yes no-such-program libc6-dev && rm -rf x\nRUN echo"
    packages = built(sources, DOCKERFILE.replace("RUN echo", instructions), lines)
    assert lines[-1].startswith("left out, as there is no no-such-program here: echo")
    assert not (packages / "word").exists()


def test_a_command_in_one_instruction_with_apt_is_rejected(sources):
    with pytest.raises(StepFailedError, match="write a RUN of its own"):
        built(sources, DOCKERFILE.replace("RUN echo", "RUN apt-get update && echo"))


def test_an_unsupported_instruction_is_rejected(sources):
    with pytest.raises(DockerfileError, match="does not know ADD"):
        read(sources, DOCKERFILE.replace("COPY one", "ADD one"))


def test_an_image_without_an_environment_is_rejected(sources):
    with pytest.raises(DockerfileError, match="image edge does not copy /opt/penstock"):
        read(sources, DOCKERFILE.replace("COPY --from=packages", "COPY --from=packages /x")).images()
