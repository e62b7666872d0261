package contract

// PathPasswordSet is where a primary's sidecar answers 204 if the password of the role that [QueryParameterRole] names
// has been set since PostgreSQL started, and 503 if it has not been set yet or the sidecar cannot tell.
const PathPasswordSet = "/password-set"

// QueryParameterRole names a role of PostgreSQL.
const QueryParameterRole = "role"
