"""The documentation keeps up with the code."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from hvdtrain.config import Job
from hvdtrain.jobfile import load_job

ROOT = Path(__file__).parents[2]
JOBS = [
    (page, example)
    for page in ("README.md", "docs/jobfile.md")
    for example in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
]


def test_every_key_of_the_job_file_is_described():
    text = (ROOT / "docs" / "jobfile.md").read_text()
    schema = Job.model_json_schema(by_alias=True)
    sections = [schema, *schema["$defs"].values()]
    keys = {key for section in sections for key in section.get("properties", {})}
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", text)] == []


def test_the_example_is_a_legal_job(tmp_path):
    text = (ROOT / "docs" / "jobfile.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "flowers.yaml").write_text(example)
    job = load_job(tmp_path / "flowers.yaml")
    assert job.name == yaml.safe_load(example)["name"]


def test_both_pages_show_a_job():
    assert {page for page, _ in JOBS} == {"README.md", "docs/jobfile.md"}


@pytest.mark.parametrize(
    "text", [example for _, example in JOBS] + [(ROOT / "hvdtrain" / "digits.yaml").read_text()]
)
def test_an_editor_with_the_schema_takes_the_examples(hvdtrain, text):
    schema = hvdtrain("schema").document
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(text), schema)


def test_every_local_link_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)
