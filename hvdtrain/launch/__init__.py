"""How ranks are started: pure functions from a LaunchPlan to a Command, and the life of a started job."""
