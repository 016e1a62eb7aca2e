"""What the manifests must be so that they fit the program: each rule yields a line for whatever breaks it.

The numbers and names on the other side come from the code (settings, limits, metrics, routes), never from here. A rule
takes the built objects of an overlay, so a test can break one value in memory and see the rule that notices.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import yaml

from feedsvc import __version__, app
from feedsvc.adapters.jwt import jwt_key_problems
from feedsvc.adapters.mongo.uri import uri_problems
from feedsvc.adapters.telemetry.metric_table import METRICS
from feedsvc.openapi import document
from feedsvc.settings import Settings, SettingsError, load_settings
from tests.k8s.built import ROOT, Manifests, Object, schema_problems
from tests.k8s.sizing import MIB, memory_bytes, quantity

Rule = Callable[[Manifests], Iterator[str]]

SECRETS = {
    "mongodb-uri": b"mongodb://feedsvc:hush@mongodb.example:27017/?replicaSet=rs0&tls=true\n",
    "token-keys": base64.urlsafe_b64encode(bytes(range(32))) + b"\n",
    "jwt-secret": b"a secret of an example, longer than 32 bytes",
}
"""What docs/kubernetes.md tells to put into the Secret."""
ANNOTATION = "nginx.ingress.kubernetes.io/"
ROUTES = frozenset(document()["paths"])
MONGODB_PORT = 27017
PRIVATE = ("/metrics", "/healthz", "/admin")
CLIENTS_OF_A_SMALL_POD = 1_000
SHORTEST_ANNOUNCEMENT_S = 5
SHORTEST_BEFORE_A_KILL_S = 30
"""How long the loop may stand still before the kubelet restarts the container."""


def settings_of(manifests: Manifests) -> Settings:
    files = manifests.files(SECRETS)
    return load_settings(
        manifests.environment(),
        read_file=files.__getitem__,
        key_problems=jwt_key_problems,
        uri_problems=uri_problems,
    )


def configuration(manifests: Manifests) -> Iterator[str]:
    """`feedsvc check` in the container would find nothing: neither a problem nor a warning."""
    try:
        yield from settings_of(manifests).warnings
    except SettingsError as error:
        yield from error.problems
        yield from error.warnings
    except KeyError as error:
        yield f"no such file in the container: {error}"
    if manifests.pod.get("enableServiceLinks") is not False:
        yield "service links would set FEEDSVC_PORT"
    if manifests.all("Secret"):
        yield "a secret stands in the repository"


def ports(manifests: Manifests) -> Iterator[str]:
    """The port that the program opens is the one that everybody else names."""
    settings = settings_of(manifests)
    named = {each["name"]: each["containerPort"] for each in manifests.container["ports"]}
    if named != {"http": settings.port}:
        yield f"the container names {named}, the program listens on {settings.port}"
    if settings.host not in ("0.0.0.0", "::"):
        yield f"{settings.host} is not reached from outside the pod"
    service = manifests.one("Service", "feedsvc")
    offered = {each["name"]: each["targetPort"] for each in service["spec"]["ports"]}
    if offered != {"http": "http"}:
        yield f"the Service forwards {offered}"
    for rule in manifests.one("NetworkPolicy")["spec"]["ingress"]:
        if [each["port"] for each in rule["ports"]] != ["http"]:
            yield "the NetworkPolicy lets another port in"
    for ingress in manifests.all("Ingress"):
        for path in _paths(ingress):
            backend = path["backend"]["service"]
            if backend != {"name": service["metadata"]["name"], "port": {"name": "http"}}:
                yield f"the Ingress goes to {backend}"
    for monitor in manifests.all("ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            if endpoint["port"] not in offered or endpoint["path"] not in ROUTES:
                yield f"nobody answers a scrape of {endpoint}"


def selectors(manifests: Manifests) -> Iterator[str]:
    """Whatever selects pods selects these, and the ServiceMonitor the Service."""
    labels = manifests.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    found = [
        manifests.one("Deployment")["spec"]["selector"]["matchLabels"],
        manifests.one("Service")["spec"]["selector"],
        manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            each["labelSelector"]["matchLabels"]
            for each in manifests.pod.get("topologySpreadConstraints", ())
        ),
    ]
    if len(found) < 6:
        yield "pods are not spread over zones and nodes"
    for selector in found:
        if not selector.items() <= labels.items():
            yield f"{selector} selects no pod"
    for monitor in manifests.all("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        if not selector.items() <= manifests.one("Service")["metadata"]["labels"].items():
            yield f"{selector} selects no Service"


def probes(manifests: Manifests) -> Iterator[str]:
    """Three questions, each at its route (protocol.md section 10), none of them a command in the image."""
    for kind, path in (("startup", "startup"), ("readiness", "ready"), ("liveness", "live")):
        probe = manifests.container.get(f"{kind}Probe", {})
        get = probe.get("httpGet", {})
        if get != {"path": f"/healthz/{path}", "port": "http"} or get["path"] not in ROUTES:
            yield f"the {kind} probe asks {get}"
        elif probe["timeoutSeconds"] >= probe["periodSeconds"] * probe["failureThreshold"]:
            yield f"the {kind} probe fails before its question can be answered"
    live = manifests.container["livenessProbe"]
    if live.get("periodSeconds", 10) * live.get("failureThreshold", 3) < SHORTEST_BEFORE_A_KILL_S:
        yield "a loop that stands still for some seconds would be killed"
    if "'exec'" in str(manifests.container):
        yield "something runs a command that the image need not have"


def ending(manifests: Manifests) -> Iterator[str]:
    """A pod accepts until the proxies know, drains, closes, and is never killed meanwhile (DEP-02)."""
    limits = settings_of(manifests).limits
    if "lifecycle" in manifests.container:
        yield "a hook delays the signal: FEEDSVC_ANNOUNCE does what it is for"
    if limits.announce_s < SHORTEST_ANNOUNCEMENT_S:
        yield f"{limits.announce_s:.0f} s are less than what proxies need to hear that a pod leaves"
    longest_s = app.longest_shutdown_s(limits)
    grace_s = manifests.pod.get("terminationGracePeriodSeconds", 30)
    if grace_s <= longest_s:
        yield f"a grace period of {grace_s} s ends before the drain, after {longest_s:.0f} s"
    strategy = manifests.one("Deployment")["spec"]["strategy"]
    if strategy["type"] != "RollingUpdate" or strategy["rollingUpdate"]["maxUnavailable"] != 0:
        yield "a rollout takes a pod away before another one is there"
    if manifests.one("PodDisruptionBudget")["spec"].get("maxUnavailable") != 1:
        yield "the drain of a node takes more than one pod at a time"


def security(manifests: Manifests) -> Iterator[str]:
    """The restricted profile of the pod security standards, and a file system that nobody writes to."""
    pod, container = manifests.pod, manifests.container
    of_pod, own = pod.get("securityContext", {}), container.get("securityContext", {})
    if of_pod.get("runAsNonRoot") is not True or not of_pod.get("runAsUser"):
        yield "it may run as root"
    if of_pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "system calls are not filtered"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield "it may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "it may write to the image"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "it keeps capabilities"
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "it sees the node"
    if {pod.get("automountServiceAccountToken"), *_tokens(manifests)} != {False}:
        yield "it gets a token of the Kubernetes API"
    if not all(mount.get("readOnly") for mount in container["volumeMounts"]):
        yield "a volume can be written to"
    if manifests.one("NetworkPolicy")["spec"]["policyTypes"] != ["Ingress", "Egress"]:
        yield "the network is open in one direction"


def network(manifests: Manifests) -> Iterator[str]:
    """The pods reach names, MongoDB and the key server where there is one, and nothing else."""
    needed = {53, MONGODB_PORT} | ({443} if settings_of(manifests).jwt.jwks_url else set())
    rules = manifests.one("NetworkPolicy")["spec"]["egress"]
    opened = {each["port"] for rule in rules for each in rule["ports"]}
    if needed - opened:
        yield f"port {min(needed - opened)} cannot be reached"
    if opened - needed:
        yield f"port {min(opened - needed)} is open and nobody needs it"
    for rule in rules:
        for target in rule.get("to", ()):
            block = target.get("ipBlock", {})
            if block.get("cidr") == "0.0.0.0/0" and "169.254.0.0/16" not in block.get("except", ()):
                yield "the metadata of the cloud can be reached"


def image(manifests: Manifests) -> Iterator[str]:
    """A tag that does not move; where it is a version, that of this tree."""
    _, _, tag = manifests.container["image"].rpartition(":")
    if tag not in ("dev", __version__):
        yield f"the image {manifests.container['image']} is not of version {__version__}"


def edge(manifests: Manifests) -> Iterator[str]:
    """The ingress waits for heartbeats, holds nothing back, takes what the program takes, shows no more."""
    limits = settings_of(manifests).limits
    for ingress in manifests.all("Ingress"):
        notes = {
            name.removeprefix(ANNOTATION): value
            for name, value in ingress["metadata"].get("annotations", {}).items()
        }
        for name in ("proxy-read-timeout", "proxy-send-timeout"):
            if int(notes.get(name, "60")) <= 3 * limits.heartbeat_interval_s:
                yield f"{name} cuts a stream that waits for its heartbeat"
        if notes.get("proxy-buffering") != "off":
            yield "server-sent events may be held back"
        if (
            quantity(notes.get("proxy-body-size", "1m").replace("k", "Ki").replace("m", "Mi"))
            < limits.frame_bytes
        ):
            yield "proxy-body-size refuses what POST /v1/sse takes"
        if "enable-cors" in notes:
            yield "two CORS headers are none"
        if not ingress["spec"].get("tls"):
            yield "JWTs travel in the clear"
        for path in _paths(ingress):
            if any(hidden.startswith(path["path"]) for hidden in PRIVATE):
                yield f"{path['path']} shows what clients need not see"
            if not any(route.startswith(path["path"]) for route in ROUTES):
                yield f"{path['path']} is no path of the program"


def scaling(manifests: Manifests) -> Iterator[str]:
    """The autoscaler asks for metrics that exist, and nobody sets its number back."""
    families = {metric.family for metric in METRICS.values() if metric.kind == "gauge"}
    for scaler in manifests.all("HorizontalPodAutoscaler"):
        spec, deployment = scaler["spec"], manifests.one("Deployment")
        if spec["scaleTargetRef"]["name"] != deployment["metadata"]["name"]:
            yield "the autoscaler scales something else"
        if "replicas" in deployment["spec"]:
            yield "every apply sets the number of pods back"
        if spec["minReplicas"] < 2:
            yield "one pod has nobody to hand its clients to"
        for metric in spec["metrics"]:
            if metric["type"] != "Pods":
                continue
            name = metric["pods"]["metric"]["name"]
            if name not in families:
                yield f"{name} is no gauge of the program"
            if name not in _adapted():
                yield f"k8s/prometheus-adapter.yaml does not give {name}"
        if not any(metric["type"] == "Pods" for metric in spec["metrics"]):
            yield "connections do not scale"


def memory(manifests: Manifests) -> Iterator[str]:
    """The limit holds what docs/sizing.md works out for the clients that a pod is meant to have."""
    clients = [
        int(metric["pods"]["target"]["averageValue"])
        for scaler in manifests.all("HorizontalPodAutoscaler")
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "Pods"
    ] or [CLIENTS_OF_A_SMALL_POD]
    needed = memory_bytes(settings_of(manifests).limits, clients=clients[0])
    resources = manifests.container["resources"]
    limit = quantity(resources["limits"]["memory"])
    if limit < needed:
        yield f"{limit / MIB:.0f} MiB of memory do not hold {clients[0]} clients, who need {needed / MIB:.0f}"
    if not resources.get("requests", {}).keys() >= {"cpu", "memory"}:
        yield "nothing is requested: the pod is the first to be evicted, and CPU cannot scale"


def _paths(ingress: Object) -> list[Object]:
    return [path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]


def _tokens(manifests: Manifests) -> list[object]:
    return [each.get("automountServiceAccountToken") for each in manifests.all("ServiceAccount")]


def _adapted() -> set[str]:
    values = yaml.safe_load((ROOT / "k8s" / "prometheus-adapter.yaml").read_text())
    return {rule["name"]["as"] for rule in values["rules"]["custom"]}


RULES: tuple[Rule, ...] = (
    schema_problems,
    configuration,
    ports,
    selectors,
    probes,
    ending,
    security,
    network,
    image,
    edge,
    scaling,
    memory,
)
"""`configuration` comes before those that need settings."""


def broken(manifests: Manifests, rules: tuple[Rule, ...] = RULES) -> list[str]:
    """All that is wrong. Without usable settings only what needs none is said."""
    found: list[str] = []
    for rule in rules:
        try:
            found += rule(manifests)
        except (SettingsError, KeyError) as error:
            found.append(f"{rule.__name__}: {error}")
    return found
