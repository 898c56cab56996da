"""Collective operations of a run: share the environment, gather all trees."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from ...configs.schema import ClientConfig, EnvironmentConfig, RunConfig
from ...envs.client.child_process import local_service
from ...envs.client.client import EnvironmentClient
from ...envs.client.connect import AnyClient, known_services, open_environment, open_environments
from ...rollouts.tree import Hit, Node, Tree
from .processes import Processes


def shared_environment(config: RunConfig, processes: Processes) -> AbstractContextManager[AnyClient]:
    """A client of the configured environment, or of all environments of a mix, in every process.

    `client.urls: local` starts one service per environment and machine.
    """
    if processes.count == 1:
        return open_environments(config)
    return open_environments(config, partial(_shared_client, processes))


@contextmanager
def _shared_client(processes: Processes, env: EnvironmentConfig, settings: ClientConfig) -> Iterator[EnvironmentClient]:
    if known_services(env, settings) is not None:
        with open_environment(env, settings) as client:
            yield client
        return
    machine = os.environ.get("GROUP_RANK") or socket.gethostname()
    is_starter = processes.all_gather(machine).index(machine) == processes.rank
    with ExitStack() as stack:
        service = processes.on_every_process(lambda: stack.enter_context(local_service(env)) if is_starter else None)
        services = {host: address for host, address in processes.all_gather((machine, service)) if address}
        with EnvironmentClient(settings, urls=[services[machine]]) as client:
            yield client


def all_trees(processes: Processes, local_trees: list[Tree]) -> list[Tree]:
    """The trees of all processes, by rank; local trees are the same objects. Collective.

    Trees of other processes have a digest instead of prompt ids, and no document texts.
    """
    if processes.count == 1:
        return local_trees
    grown = processes.all_gather([replace(tree, roots=[_light(root) for root in tree.roots]) for tree in local_trees])
    return [tree for rank, trees in enumerate(grown) for tree in (local_trees if rank == processes.rank else trees)]


def _light(node: Node) -> Node:
    """A copy of the node without prompt ids and document texts, which other processes do not need."""
    ranking = [Hit(replace(hit.document, text=""), hit.score) for hit in node.ranking]
    children = [_light(child) for child in node.children]
    return replace(node, prompt_ids=[], prompt_digest=node.state, ranking=ranking, children=children)
