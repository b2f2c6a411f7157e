#!/usr/bin/env python3
"""Compares the manifests of docs/examples/kubernetes with the schemas of their kinds.

    manifests.py [FOLDER]

JobSet and TrainJob are read by the models of kubeflow-trainer-api, which are made from the operators' types; a key that these drop is
unknown to the operator. The Job inside of the JobSet is checked by kubernetes-validate. Exits with 77 if a package is missing.
"""

import pathlib
import sys

try:
    import kubernetes_validate
    import yaml
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

MODELS = {"JobSet": JobsetV1alpha2JobSet, "TrainJob": TrainerV1alpha1TrainJob}
KUBERNETES = "1.30"


def dropped(given, kept, path=""):
    """The paths of what `given` has and `kept` lacks."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}/{key}"
            else:
                yield from dropped(value, kept[key], f"{path}/{key}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from dropped(value, kept[number] if isinstance(kept, list) and number < len(kept) else None, f"{path}/{number}")


def check(manifest):
    """What is wrong with the manifest."""
    try:
        model = MODELS[manifest["kind"]].from_dict(manifest)
    except ValueError as wrong:
        return [str(wrong)]
    found = [f"{path} is not known" for path in dropped(manifest, model.to_dict())]
    if manifest["kind"] == "JobSet":
        for job in manifest["spec"]["replicatedJobs"]:
            whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}
            try:
                kubernetes_validate.validate(whole, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as wrong:
                found.append(str(wrong))
    return found


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/kubernetes"
    failed = False
    for path in sorted((pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default).glob("*.yaml")):
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        manifest["spec"]["oops"] = 1  # the comparison finds what is wrong
        assert any("oops" in line for line in check(manifest)), "an unknown key is not found"
        del manifest["spec"]["oops"]
        wrong = check(manifest)
        failed |= bool(wrong)
        print(f"{path.name}: {'; '.join(wrong) or 'ok'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
