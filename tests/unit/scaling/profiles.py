"""Profiles made up for tests: documents of profile.json with chosen times."""


def rank_times(rank=0, host="a", load_s=0.0, exposed_s=0.0, wait_s=0.0, std_s=0.0, **times):
    parts = {"forward_s": 0.03, "backward_s": 0.06, "optimizer_s": 0.01, "other_s": 0.0, **times}
    step = load_s + exposed_s + wait_s + sum(parts.values())
    return {
        "rank": rank,
        "host": host,
        "load_s": load_s,
        **parts,
        "exposed_s": exposed_s,
        "wait_s": wait_s,
        "step_s": step,
        "compute_std_s": std_s,
    }


def profile_document(ranks=None, num_gradients=40, gradient_bytes=100_000_000, **changed):
    ranks = ranks or [rank_times()]
    step = max(one["step_s"] for one in ranks)
    names = list(dict.fromkeys(one["host"] for one in ranks))
    backward = ranks[0]["backward_s"]
    each = gradient_bytes // num_gradients
    document = {
        "schema": 1,
        "job": "digits",
        "source": "profile",
        "hvdtrain": "0.1.0",
        "torch": "2.13.0",
        "date": "2026-11-30T12:00:00",
        "backend": "horovod" if len(ranks) > 1 else "single",
        "device": "cuda",
        "device_name": "H200",
        "device_memory_bytes": 80_000_000_000,
        "size": len(ranks),
        "hosts": [{"name": name, "ranks": sum(one["host"] == name for one in ranks)} for name in names],
        "precision": "fp32",
        "compression": "none",
        "global_batch": 64 * len(ranks),
        "accumulate": 1,
        "samples_per_epoch": None,
        "epochs": None,
        "total_steps": 10_000,
        "steps": 50,
        "step_s": {"mean": step, "median": step, "p95": step, "min": step, "max": step},
        "ranks": ranks,
        "gradients": {
            "num_tensors": num_gradients,
            "num_parameters": gradient_bytes // 4,
            "bytes": gradient_bytes,
            "ready": [
                {"bytes": each, "ready_s": backward * (i + 1) / num_gradients} for i in range(num_gradients)
            ],
        },
        "fused": [],
        "loader": {
            "num_workers": 4,
            "capacity_samples_per_s": None,
            "cpu_s_per_sample": None,
            "cores_per_rank": 8.0,
        },
        "memory": {
            "parameters_bytes": gradient_bytes,
            "gradients_bytes": gradient_bytes,
            "optimizer_bytes": 2 * gradient_bytes,
            "buffers_bytes": 0,
            "peak_bytes": 10_000_000_000,
        },
        "gpu": None,
        "noise_scale": None,
        "samples_per_s": 64 * len(ranks) / step,
    }
    return {**document, **changed}
