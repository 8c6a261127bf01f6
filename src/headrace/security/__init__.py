"""Who may do what, as values: operations, resources, principals and the question of a right."""
