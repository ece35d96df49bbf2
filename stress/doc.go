// Package stress holds the tests that drive a whole server hard while parts of it are killed, and then judge the history
// that is left by an interpreter of Algorithm 1 that knows nothing of wed_sql's own.
package stress
