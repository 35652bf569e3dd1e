"""The instructions of a Dockerfile, read and followed in a folder."""

import pytest

from image_check.dockerfile import Dockerfile, DockerfileError
from image_check.environments import Builder, StepFailedError

TEXT = """\
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


def built(sources, text, said=None):
    return Builder(read(sources, text), sources, sources / "work", (said if said is not None else []).append).build(
        "packages"
    )


def test_an_image_is_a_stage_with_a_command_and_the_packages_of_another(sources):
    (image,) = read(sources, TEXT).images()
    assert (image.name, image.packages, image.command) == ("edge", "packages", ("python", "-m", "edge"))
    assert [each.name for each in read(sources, TEXT).lineage("packages")] == ["python", "sources", "packages"]


def test_a_stage_is_built_by_its_instructions_and_those_before_it(sources):
    packages = built(sources, TEXT)
    assert {each.name: each.read_text().strip() for each in packages.iterdir()} == {
        "one.txt": "one",
        "two.txt": "two",
        "word": "first",
    }
    assert packages == sources / "work" / "packages" / "opt" / "penstock"


def test_what_the_docker_build_does_not_see_is_not_copied(sources):
    built(sources, TEXT)
    assert not list((sources / "work").rglob("__pycache__"))


def test_an_instruction_that_fails_is_told_with_its_output(sources):
    with pytest.raises(StepFailedError, match="no such thing"):
        built(sources, TEXT.replace("RUN echo", "RUN echo no such thing; false; echo"))


def test_what_follows_a_program_that_apt_would_install_is_left_out_where_it_is_missing(sources):
    said = []
    lines = "RUN apt-get update && apt-get install --yes no-such-program libc6-dev && rm -rf x\nRUN echo"
    packages = built(sources, TEXT.replace("RUN echo", lines), said)
    assert said[-1].startswith("left out, as there is no no-such-program here: echo")
    assert not (packages / "word").exists()


def test_a_command_beside_apt_in_one_instruction_is_refused_as_it_would_be_left_out(sources):
    with pytest.raises(StepFailedError, match="write a RUN of its own"):
        built(sources, TEXT.replace("RUN echo", "RUN apt-get update && echo"))


def test_an_instruction_that_the_check_would_not_follow_is_refused(sources):
    with pytest.raises(DockerfileError, match="does not know ADD"):
        read(sources, TEXT.replace("COPY one", "ADD one"))


def test_an_image_without_an_environment_is_refused(sources):
    with pytest.raises(DockerfileError, match="image edge does not copy /opt/penstock"):
        read(sources, TEXT.replace("COPY --from=packages", "COPY --from=packages /x")).images()
