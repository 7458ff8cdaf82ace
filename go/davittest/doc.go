// Package davittest gives a test a Kubernetes cluster of its own, in some ten milliseconds.
//
//	func TestMyOperator(t *testing.T) {
//		cluster := davittest.Start(t)
//		clients := kubernetes.NewForConfigOrDie(cluster.Config())
//		...
//	}
//
// Each cluster is a process of its own, davit up --ephemeral --exit-with-parent, with directories and ports that nobody
// else has: many run at once, and none outlives the program that has started it, even one that is killed. The program davit
// is found by the variable DAVIT_BINARY, beside the test's program, or in PATH.
//
// Suites that use envtest of controller-runtime exchange one import: see davit.dev/davittest/envtest.
package davittest
