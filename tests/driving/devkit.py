"""NAVSIM's devkit v1.1 itself, scoring a scene of ours; and the sample of its scores that the tests come with.

It is imported only inside functions: hardly anybody has it. ``python -m tests.driving.devkit [FILE]``, with the devkit
installed, makes scenes, has the devkit score their plans and writes ``devkit_scenes.json.gz``; a FILE of scenes in the
same form adds some of its own.
"""

from __future__ import annotations

import gzip
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.driving.made import Array, Json, Wild, rounded, touching

SAMPLE = Path(__file__).parent / "devkit_scenes.json.gz"
NAMES = ("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS")


def why_not() -> str | None:
    """What keeps the devkit from scoring here, if anything does."""
    try:
        from navsim.evaluate.pdm_score import pdm_score
    except ImportError as error:
        return f"NAVSIM's devkit cannot be imported: {error}"
    if "traffic_agents_policy" in inspect.signature(pdm_score).parameters:
        return "version 2 of NAVSIM's devkit is installed: PDMS is scored by version 1.1"
    return None


def devkit_cache(scene: Json) -> Any:
    """What the devkit's ``pdm_score`` asks of a metric cache, made from a scene."""
    import shapely
    from navsim.common.dataclasses import Trajectory
    from navsim.evaluate.pdm_score import transform_trajectory
    from navsim.planning.simulation.planner.pdm_planner.observation.pdm_observation import PDMObservation
    from navsim.planning.simulation.planner.pdm_planner.observation.pdm_occupancy_map import PDMDrivableMap
    from navsim.planning.simulation.planner.pdm_planner.utils.pdm_path import PDMPath
    from nuplan.common.actor_state.ego_state import EgoState
    from nuplan.common.actor_state.state_representation import StateSE2, StateVector2D, TimePoint
    from nuplan.common.actor_state.vehicle_parameters import get_pacifica_parameters
    from nuplan.common.maps.maps_datatypes import SemanticMapLayer
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling

    layers = {
        "lane": SemanticMapLayer.LANE,
        "roadblock": SemanticMapLayer.ROADBLOCK,
        "intersection": SemanticMapLayer.INTERSECTION,
        "drivable_area": SemanticMapLayer.DRIVABLE_AREA,
        "car_park": SemanticMapLayer.CARPARK_AREA,
    }
    ego = EgoState.build_from_rear_axle(
        StateSE2(0, 0, 0),
        StateVector2D(scene["ego"]["speed"], 0),
        StateVector2D(scene["ego"]["acceleration"], 0),
        0.0,
        TimePoint(0),
        get_pacifica_parameters(),
    )
    sampling = TrajectorySampling(num_poses=40, interval_length=0.1)
    observation = PDMObservation(sampling, sampling, 100.0, observation_sample_res=1)
    observation.update_detections_tracks([_tracks(scene, t) for t in range(51)])
    reference = Trajectory(np.array(scene["reference"]), TrajectorySampling(time_horizon=4, interval_length=0.5))
    return SimpleNamespace(
        ego_state=ego,
        trajectory=transform_trajectory(reference, ego),
        observation=observation,
        centerline=PDMPath([StateSE2(x, y, 0.0) for x, y in scene["centre_line"]]),
        route_lane_ids=list(scene["route"]),
        drivable_area_map=PDMDrivableMap(
            [p["name"] for p in scene["polygons"]],
            [layers[p["kind"]] for p in scene["polygons"]],
            np.array([shapely.Polygon(p["points"]) for p in scene["polygons"]], dtype=object),
        ),
    )


def _tracks(scene: Json, t: int) -> Any:
    from nuplan.common.actor_state.agent import Agent
    from nuplan.common.actor_state.oriented_box import OrientedBox
    from nuplan.common.actor_state.scene_object import SceneObjectMetadata
    from nuplan.common.actor_state.state_representation import StateSE2, StateVector2D
    from nuplan.common.actor_state.static_object import StaticObject
    from nuplan.common.actor_state.tracked_objects import TrackedObjects
    from nuplan.common.actor_state.tracked_objects_types import AGENT_TYPES, TrackedObjectType
    from nuplan.planning.simulation.observation.observation_type import DetectionsTracks

    tracked: list[Any] = []
    for i, item in enumerate(scene["objects"]):
        box = OrientedBox(StateSE2(*item["poses"][t]), item["length"], item["width"], 1.5)
        kind = TrackedObjectType[item["kind"].upper()]
        data = SceneObjectMetadata(timestamp_us=t * 100_000, token=str(i), track_id=None, track_token=str(i))
        if kind in AGENT_TYPES:
            tracked.append(Agent(kind, box, StateVector2D(item["speed"], 0), data))
        else:
            tracked.append(StaticObject(kind, box, data))
    return DetectionsTracks(TrackedObjects(tracked))


def devkit_score(cache: Any, plans: Array) -> tuple[dict[str, Array], Array]:
    """The devkit's seven numbers for plans (k, 8, 3), and x, y, heading, speed of what it simulated, (k, 41, 4)."""
    from navsim.common.dataclasses import Trajectory
    from navsim.evaluate.pdm_score import pdm_score
    from navsim.planning.simulation.planner.pdm_planner.scoring.pdm_scorer import PDMScorer
    from navsim.planning.simulation.planner.pdm_planner.simulation.pdm_simulator import PDMSimulator
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling

    sampling = TrajectorySampling(num_poses=40, interval_length=0.1)
    rows, states = [], []
    for plan in plans:
        scorer, simulator = PDMScorer(sampling), PDMSimulator(sampling)
        poses = Trajectory(np.array(plan), TrajectorySampling(time_horizon=4, interval_length=0.5))
        found = pdm_score(cache, poses, sampling, simulator, scorer)
        rows.append(
            (
                found.no_at_fault_collisions,
                found.drivable_area_compliance,
                found.ego_progress,
                found.time_to_collision_within_bound,
                found.comfort,
                found.driving_direction_compliance,
                found.score,
            )
        )
        states.append(scorer._states[1][:, :4])
    return dict(zip(NAMES, np.array(rows, dtype=np.float64).T, strict=True)), np.array(states)


def with_scores(scene: Json, plans: Array) -> Json:
    scores, _ = devkit_score(devkit_cache(scene), plans)
    named = [{name: float(scores[name][i]) for name in NAMES} for i in range(len(plans))]
    return {**scene, "plans": [{"poses": p.tolist(), "scores": s} for p, s in zip(plans, named, strict=True)]}


def write_sample(given: list[Json]) -> None:
    """32 awkward, 16 touching and some given scenes, in few digits, with the devkit's scores."""
    made: list[Json] = []
    for seed in range(32):
        scene, plans = Wild(seed).scene()
        made.append(with_scores(rounded(scene, 2), np.round(plans, 3)))
    for seed in range(16):
        made.append(with_scores(*touching(seed)))
    for scene in given:
        few = rounded({key: value for key, value in scene.items() if key != "plans"}, 3)
        made.append(with_scores(few, np.round([plan["poses"] for plan in scene["plans"]], 4)))
    with SAMPLE.open("wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
        packed.write(json.dumps(made, separators=(",", ":")).encode())


def read(path: Path) -> list[Json]:
    scenes: list[Json] = json.loads(gzip.decompress(path.read_bytes()))
    return scenes


if __name__ == "__main__":
    write_sample(read(Path(sys.argv[1]))[6:40:16] if len(sys.argv) > 1 else [])
