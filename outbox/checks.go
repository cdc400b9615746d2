package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// checked finds out whether the server keeps CHECK constraints, by which Write knows another message under an ID that is
// there already. MySQL before 8.0.16 reads over them, and MariaDB can be told to.
func (o *Outbox) checked(ctx context.Context) error {
	if o.dialect != MySQL {
		return nil
	}
	var version string
	if err := o.db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return err
	}
	if !strings.Contains(version, "MariaDB") {
		if keepsChecks(version) {
			return nil
		}
		return fmt.Errorf("MySQL %s has no CHECK constraints, by which another message under an ID is refused; 8.0.16 is the first that has", version)
	}
	var on bool
	if err := o.db.QueryRowContext(ctx, "SELECT @@check_constraint_checks").Scan(&on); err != nil {
		return err
	}
	if !on {
		return errors.New("check_constraint_checks is off, and another message under an ID would go unnoticed; set it to 1 on the server and in the DSN")
	}
	return nil
}

// keepsChecks reads a version of MySQL, "8.0.16-log" say.
func keepsChecks(version string) bool {
	var v [3]int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]) // what is missing is 0
	switch {
	case v[0] != 8:
		return v[0] > 8
	case v[1] != 0:
		return true
	}
	return v[2] >= 16
}
