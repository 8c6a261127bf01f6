"""This node among others: joining, reaching the controller, being the controller."""
