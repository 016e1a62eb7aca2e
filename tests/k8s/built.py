"""The manifests as `kubectl kustomize` builds them, and what the kubelet makes of them.

`kubectl` is a locked tool of the tests (a wheel with the program, for Linux); elsewhere the one on the path is taken.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("dev", "prod")
VERSIONS = ("1.27", "1.37")
"""The oldest that has what the manifests use (`matchLabelKeys`, `unhealthyPodEvictionPolicy`), and the newest known."""

Object = dict[str, Any]


@cache
def _built(overlay: str) -> list[Object]:
    own = Path(sys.executable).with_name("kubectl")
    program = str(own) if own.exists() else shutil.which("kubectl")
    assert program, "no kubectl: `make install` brings it on Linux"
    command = [program, "kustomize", str(K8S / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


class Manifests:
    """The objects of an overlay. Change them in memory to see whether anybody notices."""

    def __init__(self, overlay: str) -> None:
        self.objects = copy.deepcopy(_built(overlay))

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Object:
        """The one object of a kind whose name begins so: generated ones end in a hash."""
        (found,) = (each for each in self.all(kind) if each["metadata"]["name"].startswith(name))
        return found

    @property
    def pod(self) -> Object:
        spec: Object = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        found: Object
        (found,) = self.pod["containers"]
        return found

    def environment(self) -> dict[str, str]:
        """As the kubelet sets it. Values that come from nowhere are a KeyError here and a pod that never starts."""
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", ()):
            found |= self.one_named("ConfigMap", source["configMapRef"]["name"])["data"]
        for entry in self.container.get("env", ()):
            found[entry["name"]] = entry["value"]
        return found

    def one_named(self, kind: str, name: str) -> Object:
        (found,) = (each for each in self.all(kind) if each["metadata"]["name"] == name)
        return found

    def files(self, secrets: dict[str, bytes]) -> dict[str, bytes]:
        """Paths in the container to what is there; `secrets` are the keys of the Secret that is made by hand."""
        volumes = {each["name"]: each for each in self.pod["volumes"]}
        found: dict[str, bytes] = {}
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                data = self.one_named("ConfigMap", volume["configMap"]["name"])["data"]
                content = {key: text.encode() for key, text in data.items()}
            else:
                assert volume["secret"]["secretName"] == "feedsvc"
                content = secrets
            found |= {f"{mount['mountPath']}/{key}": value for key, value in content.items()}
        return found


def schema_problems(manifests: Manifests, kind: str = "") -> Iterator[str]:
    """What Kubernetes' own schemas, of the oldest and the newest version, have against any object (of a kind)."""
    for found in manifests.objects:
        if kind and found["kind"] != kind:
            continue
        own = ROOT / "tests" / "k8s" / "schemas" / f"{found['kind'].lower()}.json"
        if own.exists():
            for error in jsonschema_rs.Draft202012Validator(json.loads(own.read_text())).iter_errors(found):
                yield f"{found['kind']}: {error.message}"
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(copy.deepcopy(found), version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{found['kind']} in {version}: {error.message}"
