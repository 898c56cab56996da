"""Installed as the package `querylect_retrieval`: verifiers finds an environment by a package of its own."""

from querylect.envs.adapters.verifiers import RetrievalEnv, RetrievalTaskset

__all__ = ["RetrievalEnv", "RetrievalTaskset"]
