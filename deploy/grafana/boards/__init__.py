"""The dashboards, each described in a file of its own."""

from deploy.grafana.boards.fabric import FABRIC
from deploy.grafana.boards.fleet import FLEET
from deploy.grafana.boards.node import NODE
from deploy.grafana.boards.run import RUN

BOARDS = (FLEET, FABRIC, NODE, RUN)
