"""Values that cannot work are refused when they are rendered, with the value and the reason."""

import pytest
from helm_python import HelmError

from tests.deploy.chart.helm import Values, case, render

GPUS = {"tensor": 16, "gpusPerNode": 16}
PLAN = {"kvHeads": 8, "queriesPerKvHead": 4, "kvCapacity": 4096}
CLAIMED = {"claims": [{"name": "gpu"}]}
GPU = {"name": "gpu", "resourceClaimTemplateName": "eight-gpus"}
# Each pod goes before the next one starts.
IN_TURN = {"updateStrategy": {"maxSurge": 0, "maxUnavailable": 1}}
SHARED = {"model": "a/b", "modelSource": {"cache": {"create": True, "accessMode": "ReadWriteOnce"}}}

REFUSED = [
    ({"autoscaling": {"hpa": {"enabled": True}, "keda": {"enabled": True}}}, "two autoscalers would undo each other's"),
    ({"autoscaling": {"keda": {"enabled": True}}}, "keda.serverAddress: keda.enabled needs the address of Prometheus"),
    ({"autoscaling": {"minReplicas": 9}}, "minReplicas: 9 must be at most maxReplicas, 4"),
    ({"parallelism": {**GPUS, "decodeContext": 3}}, "decodeContext: 3 must divide parallelism.tensor, 16"),
    (
        {"parallelism": {"tensor": 8, "gpusPerNode": 8, "decodeContext": 2}, "plan": PLAN},
        "decodeContext: 2: parallelism.tensor 8 does not replicate the model's 8 KV heads",
    ),
    (
        {"parallelism": {**GPUS, "decodeContext": 4}, "plan": PLAN},
        "decodeContext: 4: parallelism.tensor 16 makes only 2 copies of each of the model's 8 KV heads",
    ),
    (
        {"parallelism": {**GPUS, "decodeContext": 2}, "plan": {**PLAN, "queriesPerKvHead": 7}},
        "decodeContext: 2 must divide the model's 7 query heads",
    ),
    ({"maxModelLen": 4097, "plan": PLAN}, "maxModelLen: 4097 tokens exceed plan.kvCapacity: .* holds 4096"),
    (
        {"parallelism": {"tensor": 8, "gpusPerNode": 4}},
        "tensor 8 x pipeline 1 uses 8 GPUs, but nodes 1 x gpusPerNode 4 are 4",
    ),
    ({"parallelism": {"nodes": 2}}, "parallelism.nodes: 2 nodes need parallelism.gpusPerNode of at least 1"),
    (
        {"parallelism": GPUS, "resources": {"limits": {"nvidia.com/gpu": 8}}},
        "nvidia.com/gpu 8 must equal parallelism.gpusPerNode, 16",
    ),
    (
        {"parallelism": GPUS, "resources": {"requests": {"nvidia.com/gpu": 8}}},
        "resources.requests: nvidia.com/gpu 8 must equal parallelism.gpusPerNode, 16",
    ),
    (
        {
            "parallelism": GPUS,
            "resources": {"limits": {"nvidia.com/gpu": 16}, **CLAIMED},
            "resourceClaims": [GPU],
            "gpusFromClaims": True,
        },
        "resources.limits: nvidia.com/gpu 16 conflicts with gpusFromClaims, which takes GPUs from claims",
    ),
    ({"gpusFromClaims": True}, "gpusFromClaims: parallelism.gpusPerNode 0 is for CPUs"),
    ({"parallelism": GPUS, "gpusFromClaims": True}, "gpusFromClaims: resources.claims must name the claim"),
    (
        {"parallelism": GPUS, "resources": {"requests": {"nvidia.com/gpu": 0}}},
        "resources.requests: nvidia.com/gpu 0 must equal parallelism.gpusPerNode, 16",
    ),
    ({"apiKeys": {"existingSecret": "a"}}, 'apiKeys.existingSecret: "a", but apiKeys.enabled is false'),
    ({"tls": {"existingSecret": "a"}}, 'tls.existingSecret: "a", but tls.enabled is false'),
    (
        {"metrics": {"serviceMonitor": {"enabled": True, "interval": "5s"}}},
        "metrics.serviceMonitor.scrapeTimeout: 10s must be at most the interval, 5s",
    ),
    (
        {"metrics": {"serviceMonitor": {"interval": "1m", "scrapeTimeout": "61000ms"}}},
        "metrics.serviceMonitor.scrapeTimeout: 61000ms must be at most the interval, 1m",
    ),
    (
        {"parallelism": {"dataParallelReplicas": 3}, "autoscaling": {"hpa": {"enabled": True}}},
        "parallelism.dataParallelReplicas: 3 must be at most autoscaling.minReplicas, 1",
    ),
    ({"server": {"extraVolumes": [{"name": "tmp"}]}}, 'server.extraVolumes: "tmp" appears twice in the pod'),
    (
        {"server": {"extraVolumeMounts": [{"name": "a", "mountPath": "/tmp"}]}},
        'server.extraVolumeMounts: "/tmp" appears twice in the pod',
    ),
    (
        {"server": {"extraContainers": [{"name": "ropeswitch"}]}},
        'server.extraContainers and extraInitContainers: "ropeswitch" appears twice',
    ),
    ({"server": {"extraEnv": [{"name": "A"}, {"name": "A"}]}}, 'server.extraEnv: "A" appears twice'),
    ({"server": {"extraArgs": ["--port", "9000"]}}, 'server.extraArgs: "--port" is set by server.port'),
    ({"server": {"extraArgs": ["--max_model_len=5"]}}, 'server.extraArgs: "--max_model_len=5" is set by maxModelLen'),
    (
        {
            "model": "a",
            "modelSource": {"type": "objectStore", "objectStore": {"uri": "gs://a/b", "endpoint": "https://a"}},
        },
        'objectStore.endpoint: "https://a" works only with s3:// addresses, not "gs://a/b"',
    ),
    ({"parallelism": GPUS, "resources": CLAIMED}, 'resources.claims: "gpu" is not in resourceClaims'),
    (
        {"autoscaling": {"keda": {"enabled": True, "serverAddress": "http://a", "authModes": "bearer"}}},
        'keda.authModes: "bearer" needs autoscaling.keda.authentication',
    ),
    (
        {"chatTemplate": {"content": "a", "existingConfigMap": "mine"}},
        'chatTemplate.existingConfigMap: "mine" conflicts with chatTemplate.content',
    ),
    ({"apiKeys": {"enabled": True}}, "apiKeys.existingSecret: apiKeys.enabled needs the name of the secret"),
    (
        {"tls": {"enabled": True, "existingSecret": "a"}, "gateway": {"enabled": True, "parentRefs": [{"name": "b"}]}},
        "gateway.enabled: a gateway speaks plain HTTP to the servers",
    ),
    (
        {"plan": {"kvCapacity": 50}},
        "maxModelLen: 0 means the end of the ladder, which may exceed plan.kvCapacity, 50 tokens;",
    ),
    (
        {"model": "a", "modelSource": {"cache": {"create": True, "accessMode": "ReadWriteOnce"}}},
        "modelSource.cache.accessMode: ReadWriteOnce allows only one node, but a second pool or a surge pod may",
    ),
    ({"tls": {"enabled": True}}, "tls.existingSecret: tls.enabled needs the name of a secret"),
    ({"terminationGracePeriodSeconds": 70}, "terminationGracePeriodSeconds: 70 must exceed 70: preStopSeconds 15"),
    ({"server": {"shutdownTimeout": 600}}, "must exceed 645: .* server.shutdownTimeout 600 \\+ 30"),
    ({"model": "/models/llama"}, 'model: "/models/llama" is not a name on the hub; for a folder, use modelSource.type'),
    ({"model": "a/b/c"}, 'model: "a/b/c" is not a name on the hub'),
    ({"modelSource": {"type": "pvc"}}, "model: modelSource.type pvc needs the name"),
    ({"model": "a", "modelSource": {"type": "pvc"}}, "modelSource.pvc.claimName: modelSource.type pvc needs the claim"),
    ({"model": "a", "modelSource": {"type": "objectStore"}}, "modelSource.objectStore.uri: .* needs the address"),
    (
        {"model": "a", "modelSource": {"cache": {"create": True, "existingClaim": "mine"}}},
        'modelSource.cache.existingClaim: "mine" conflicts with modelSource.cache.create',
    ),
    (
        {**SHARED, **IN_TURN, "parallelism": {"dataParallelReplicas": 2}},
        "ReadWriteOnce allows only one node, but there are up to 2 pods",
    ),
    (
        {**SHARED, **IN_TURN, "autoscaling": {"hpa": {"enabled": True}}},
        "ReadWriteOnce allows only one node, but there are up to 4 pods",
    ),
    (
        {"factors": {"content": "{}", "existingConfigMap": "mine"}},
        'factors.existingConfigMap: "mine" conflicts with factors.content',
    ),
    (
        {"ladder": "yarn", "factors": {"content": "{}"}},
        'ladder: "yarn" conflicts with the factor file .factors.; set only one',
    ),
    ({"ladder": "auto", "factors": {"existingConfigMap": "mine"}}, 'ladder: "auto" conflicts with the factor file'),
    (
        {"ladder": "file:f.json"},
        'ladder: "file:f.json": pods do not have this file; pass its content with --set-file factors',
    ),
    (
        {"nativeWindow": 32768, "factors": {"content": "{}"}},
        "nativeWindow: 32768 conflicts with the factor file .factors., which defines its",
    ),
    (
        {"nativeWindow": 32768, "ladder": "none"},
        "nativeWindow: 32768 conflicts with ladder none, which serves every length by",
    ),
    (
        {"server": {"extraArgs": ["--requests-per-minute-per-key=60"]}},
        '"--requests-per-minute-per-key=60" is no flag of the server any more; limit rates in a gateway',
    ),
    (
        {"server": {"extraArgs": ["--allow_ladder_updates"]}},
        "is no flag of the server any more; a ladder is fixed at startup",
    ),
    ({"server": {"extraArgs": ["--ladder=yarn"]}}, 'server.extraArgs: "--ladder=yarn" is set by ladder'),
    (
        {"server": {"extraArgs": ["--native-window", "32k"]}},
        'server.extraArgs: "--native-window" is set by nativeWindow',
    ),
    ({"server": {"extraArgs": ["--ladder-policy=length"]}}, '"--ladder-policy=length" is set by ladderPolicy'),
    ({"server": {"extraArgs": ["--ladder-aliases"]}}, 'server.extraArgs: "--ladder-aliases" is set by ladderAliases'),
    ({"updateStrategy": {"maxSurge": 0}}, "maxSurge and maxUnavailable are both 0"),
    ({"updateStrategy": {"maxSurge": "0%"}}, "maxSurge and maxUnavailable are both 0"),
    ({"ingress": {"enabled": True}}, "ingress.hosts: ingress.enabled needs a host"),
    ({"gateway": {"enabled": True}}, "gateway.parentRefs: gateway.enabled needs the gateway"),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_refused(values: Values, reason: str) -> None:
    with pytest.raises(HelmError, match=reason):
        render(values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"parallelism": {"tensor": 8, "gpusPerNode": 4}}, "longPool.values.parallelism: tensor 8"),
        ({"plan": {"kvCapacity": 5}, "maxModelLen": 6}, "longPool.values.maxModelLen: 6 tokens exceed"),
        ({"server": {"shutdownTimeout": 100}}, "must exceed 145: .* longPool.values.server.shutdownTimeout 100"),
        ({"autoscaling": {"minReplicas": 9}}, "longPool.values.autoscaling.minReplicas: 9"),
        ({"ladder": "file:f.json"}, 'longPool.values.ladder: "file:f.json": pods do not have this file'),
    ],
)
def test_the_long_pool_is_judged_by_its_own_values(values: Values, reason: str) -> None:
    with pytest.raises(HelmError, match=reason):
        render({"longPool": {"enabled": True, "values": values}})
    render({"longPool": {"enabled": False, "values": values}})


def test_what_is_just_allowed() -> None:
    render({"terminationGracePeriodSeconds": 71})
    render({"maxModelLen": 4096, "plan": PLAN})
    render({"maxModelLen": 4096, "parallelism": {**GPUS, "decodeContext": 2}, "plan": PLAN})
    render({"parallelism": {**GPUS, "decodeContext": 2}})
    render({**SHARED, **IN_TURN, "parallelism": {"dataParallelReplicas": 1}})


def test_the_capacity_of_one_pool_is_not_that_of_the_other() -> None:
    values = dict(case("everything")) | {"plan": {"kvCapacity": 32768}}
    render(values)
    values["longPool"] = {**values["longPool"], "values": {**values["longPool"]["values"]}}
    del values["longPool"]["values"]["plan"]
    render(values)
