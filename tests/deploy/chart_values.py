"""Values to try the Helm chart with: those of the golden files, and those that must be refused."""

VALUES = {
    "default": {},
    "gpu": {"gpus": 1, "runtimeClassName": "nvidia", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}},
    "restricted": {
        "networkPolicy": {
            "clients": [{"podSelector": {"matchLabels": {"role": "engine"}}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
    },
    "secure": {
        "tls": {"enabled": True, "secretName": "gdpcache-tls", "requireClientCertificates": True},
        "tokens": {"secretName": "gdpcache-tokens"},
        "identities": [
            {"name": "chat-engine", "tenant": "chat", "permissions": ["DATA"]},
            {"name": "spiffe://cluster.local/ns/ops/sa/operator", "tenant": "ops", "permissions": ["DATA", "ADMIN"]},
        ],
    },
    "everything": {
        "replicas": 2,
        "caches": ['name: "m" geometry { layers: 2 slots: 8 heads: 4 key_dim: 64 value_dim: 64 }'],
        "snapshots": {
            "deviceMemory": "1GiB",
            "hostMemory": "2GiB",
            "disk": {"enabled": True, "storageClassName": "fast"},
        },
        "sameHost": {"enabled": True, "hostIPC": True},
        "metrics": {"serviceMonitor": {"enabled": True}, "rules": {"enabled": True}},
        "serviceAccount": {"annotations": {"example.org/a": "b"}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
}

REFUSED = {
    "an unknown value": {"replica": 2},
    "two GPUs in one server": {"gpus": 2},
    "a port of the system's": {"service": {"port": 80}},
    "a field the chart sets itself": {"config": {"listen": "0.0.0.0:1"}},
    "TLS without a secret": {"tls": {"enabled": True}},
    "an identity without a permission": {"identities": [{"name": "a", "tenant": "t", "permissions": []}]},
    "a permission that does not exist": {"identities": [{"name": "a", "tenant": "t", "permissions": ["WRITE"]}]},
}


# What the values' schema cannot tell.
CONTRADICTIONS = {
    "tokens stand for them": {"tokens": {"secretName": "tokens"}},
    "tokens do not travel in clear text": {
        "identities": [{"name": "a", "tenant": "t", "permissions": ["DATA"]}],
        "tokens": {"secretName": "tokens"},
    },
    "nobody could show to be one": {
        "identities": [{"name": "a", "tenant": "t", "permissions": ["DATA"]}],
        "tls": {"enabled": True, "secretName": "tls"},
    },
}
