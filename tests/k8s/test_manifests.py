"""The manifests build and are valid without a cluster, and fit the program; what breaks them is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.k8s import rules
from tests.k8s.built import K8S, OVERLAYS, ROOT, Manifests, schema_problems
from tests.k8s.rules import RULES, Rule, broken
from tests.k8s.sizing import measured, sources, table

Break = Callable[[Manifests], Any]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_an_overlay_keeps_the_rule(overlay: str, rule: Rule) -> None:
    assert broken(Manifests(overlay), (rule,)) == []


def environment(manifests: Manifests) -> dict[str, str]:
    data: dict[str, str] = manifests.one("ConfigMap", "feedsvc-environment")["data"]
    return data


def notes(manifests: Manifests) -> dict[str, str]:
    found: dict[str, str] = manifests.one("Ingress")["metadata"]["annotations"]
    return found


def scaler(manifests: Manifests) -> Any:
    return manifests.one("HorizontalPodAutoscaler")["spec"]


def schemas_of(kind: str) -> Rule:
    return lambda manifests: schema_problems(manifests, kind)


MISTAKES: dict[str, tuple[Rule, Break, str]] = {
    "a misspelt variable": (
        rules.configuration,
        lambda m: environment(m).update(FEEDSVC_DRIAN="30"),
        "FEEDSVC_DRIAN is not a setting; did you mean FEEDSVC_DRAIN?",
    ),
    "a value that the program refuses": (
        rules.configuration,
        lambda m: environment(m).update(FEEDSVC_DRAIN="30s"),
        "FEEDSVC_DRAIN",
    ),
    "a secret under another name": (
        rules.configuration,
        lambda m: environment(m).update(FEEDSVC_TOKEN_KEYS_FILE="/run/secrets/feedsvc/keys"),
        "no such file in the container",
    ),
    "another port of the program": (
        rules.ports,
        lambda m: environment(m).update(FEEDSVC_PORT="8081"),
        "listens on 8081",
    ),
    "another port of the container": (
        rules.ports,
        lambda m: m.container["ports"][0].update(containerPort=80),
        "the container names {'http': 80}",
    ),
    "an address that nobody reaches": (
        rules.ports,
        lambda m: environment(m).update(FEEDSVC_HOST="127.0.0.1"),
        "not reached from outside",
    ),
    "service links": (rules.configuration, lambda m: m.pod.pop("enableServiceLinks"), "service links"),
    "a probe of another question": (
        rules.probes,
        lambda m: m.container["livenessProbe"]["httpGet"].update(path="/healthz/ready"),
        "the liveness probe asks",
    ),
    "a hasty kill": (
        rules.probes,
        lambda m: m.container["livenessProbe"].update(failureThreshold=1),
        "would be killed",
    ),
    "a grace period that is shorter than the drain": (
        rules.ending,
        lambda m: m.pod.update(terminationGracePeriodSeconds=100),
        "a grace period of 100 s ends before the drain, after 109 s",
    ),
    "a drain that is longer than the grace period": (
        rules.ending,
        lambda m: environment(m).update(FEEDSVC_DRAIN="110"),
        "ends before the drain",
    ),
    "no time for proxies": (
        rules.ending,
        lambda m: environment(m).pop("FEEDSVC_ANNOUNCE"),
        "0 s are less than what proxies need",
    ),
    "a hook that needs a shell": (
        rules.ending,
        lambda m: m.container.update(lifecycle={"preStop": {"exec": {"command": ["sleep", "10"]}}}),
        "a hook delays the signal",
    ),
    "a probe by a command that an image need not have": (
        rules.probes,
        lambda m: m.container["readinessProbe"].update(exec={"command": ["curl", "localhost:8080"]}),
        "runs a command that the image need not have",
    ),
    "a gap in a rollout": (
        rules.ending,
        lambda m: m.one("Deployment")["spec"]["strategy"]["rollingUpdate"].update(maxUnavailable=1),
        "takes a pod away before",
    ),
    "root": (
        rules.security,
        lambda m: m.pod["securityContext"].update(runAsNonRoot=False),
        "it may run as root",
    ),
    "a capability": (
        rules.security,
        lambda m: m.container["securityContext"]["capabilities"].update(add=["NET_BIND_SERVICE"]),
        "it keeps capabilities",
    ),
    "a file system that can be written to": (
        rules.security,
        lambda m: m.container["securityContext"].pop("readOnlyRootFilesystem"),
        "it may write to the image",
    ),
    "a token of the Kubernetes API": (
        rules.security,
        lambda m: m.pod.pop("automountServiceAccountToken"),
        "it gets a token",
    ),
    "a key server that cannot be reached": (
        rules.network,
        lambda m: m.one("NetworkPolicy")["spec"]["egress"].pop(),
        "port 443 cannot be reached",
    ),
    "an open port": (
        rules.network,
        lambda m: m.one("NetworkPolicy")["spec"]["egress"][0]["ports"].append(
            {"protocol": "TCP", "port": 22}
        ),
        "port 22 is open and nobody needs it",
    ),
    "a metric that the program does not have": (
        rules.scaling,
        lambda m: scaler(m)["metrics"][0]["pods"]["metric"].update(name="feedsvc_clients"),
        "feedsvc_clients is no gauge of the program",
    ),
    "replicas beside an autoscaler": (
        rules.scaling,
        lambda m: m.one("Deployment")["spec"].update(replicas=3),
        "sets the number of pods back",
    ),
    "more clients than memory": (
        rules.memory,
        lambda m: scaler(m)["metrics"][0]["pods"]["target"].update(averageValue="50000"),
        "do not hold 50000 clients",
    ),
    "more logs than memory": (
        rules.memory,
        lambda m: environment(m).update(FEEDSVC_MAX_TAILS="64"),
        "MiB of memory do not hold",
    ),
    "an ingress that cuts quiet streams": (
        rules.edge,
        lambda m: notes(m).pop("nginx.ingress.kubernetes.io/proxy-read-timeout"),
        "proxy-read-timeout cuts a stream",
    ),
    "rarer heartbeats": (
        rules.edge,
        lambda m: environment(m).update(FEEDSVC_HEARTBEAT_INTERVAL="60"),
        "cuts a stream that waits for its heartbeat",
    ),
    "metrics for everybody": (
        rules.edge,
        lambda m: m.one("Ingress")["spec"]["rules"][0]["http"]["paths"][0].update(path="/"),
        "/ shows what clients need not see",
    ),
    "a scrape of nothing": (
        rules.ports,
        lambda m: m.one("ServiceMonitor")["spec"]["endpoints"][0].update(path="/prometheus"),
        "nobody answers a scrape",
    ),
    "a selector of nothing": (
        rules.selectors,
        lambda m: m.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(app="feeds"),
        "selects no pod",
    ),
    "an old image": (
        rules.image,
        lambda m: m.container.update(image="images.example.com/feedsvc:0.0.1"),
        "is not of version",
    ),
    "a field that Kubernetes does not know": (
        schemas_of("Deployment"),
        lambda m: m.pod.update(terminationGracePeriod=120),
        "Deployment in 1.27",
    ),
    "a number where Kubernetes wants text": (
        schemas_of("ConfigMap"),
        lambda m: environment(m).update(FEEDSVC_DRAIN=90),  # type: ignore[call-overload]
        "ConfigMap in 1.37",
    ),
    "a field that a ServiceMonitor does not know": (
        schemas_of("ServiceMonitor"),
        lambda m: m.one("ServiceMonitor")["spec"]["endpoints"][0].update(targetport="http"),
        "ServiceMonitor: ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake: str) -> None:
    """Each breaks one value of the built objects, in memory."""
    manifests = Manifests("prod")
    rule, make, said = MISTAKES[mistake]
    make(manifests)
    found = broken(manifests, (rule,))
    assert any(said in problem for problem in found), found


def test_every_file_below_k8s_is_part_of_an_overlay() -> None:
    """But for the values of another chart: a manifest that no overlay names is valid for nobody."""
    named = {K8S / "prometheus-adapter.yaml"}
    for kustomization in K8S.rglob("kustomization.yaml"):
        content = yaml.safe_load(kustomization.read_text())
        named.add(kustomization)
        named |= {kustomization.parent / each for each in content["resources"]}
        for generator in content["configMapGenerator"]:
            named |= {
                kustomization.parent / each for each in generator.get("files", []) + generator.get("envs", [])
            }
    assert {path for path in K8S.rglob("*") if path.is_file()} <= named


def test_the_page_about_sizes_says_what_was_measured() -> None:
    """docs/sizing.md repeats figures of docs/performance.md; new ones there must reach it."""
    assert len(sources()) >= 4
    for name, source in sources().items():
        assert table()[name] == pytest.approx(measured(source)), name


def test_the_page_about_kubernetes_names_what_is_to_be_replaced() -> None:
    """Every example value of the production overlay stands in docs/kubernetes.md."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for example in (
        "images.example.com",
        "login.example.com",
        "app.example.com",
        "feeds.example.com",
        "10.20.0.0/16",
    ):
        assert example in page
