package davittest

import "testing"

// Start starts a control plane that ends with the test. If the test fails, the end of davit's log is shown and the whole of
// it kept, below DAVIT_TEST_LOGS if that is set.
func Start(t testing.TB) *Cluster {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with options.
func StartWith(t testing.TB, options Options) *Cluster {
	t.Helper()
	options.test = t.Name()
	cluster, err := Launch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	cluster.failed = t.Failed
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
		if cluster.kept != "" {
			t.Logf("davit's log is kept: %s\n%s", cluster.kept, cluster.tail)
		}
	})
	return cluster
}
