"""Authorization: operations, resources, principals, and the authorizer that allows or denies."""
