import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;

/** Does as stacks.py does, with HikariCP. */
public class Stacks {
	public static void main(String[] arguments) throws Exception {
		HikariConfig config = new HikariConfig();
		config.setJdbcUrl("jdbc:postgresql://" + arguments[0] + "/app?sslmode=" + System.getenv("SSLMODE"));
		config.setUsername("app");
		config.setPassword(System.getenv("PGPASSWORD"));
		config.setInitializationFailTimeout(-1);
		config.setConnectionTimeout(Long.parseLong(System.getenv("TIMEOUT")) * 1000);
		HikariDataSource pool = null;
		BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
		for (String line = lines.readLine(); line != null; line = lines.readLine()) {
			if (pool == null) {
				pool = new HikariDataSource(config); // it connects at once
			}
			int errors = 0;
			String first = "";
			while (errors < Integer.parseInt(System.getenv("TRIES"))) {
				try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
					statement.execute("select 1");
					break;
				} catch (SQLException error) {
					Throwable cause = error.getCause() == null ? error : error.getCause();
					first = errors++ == 0 ? (error.getMessage() + ": " + cause.getMessage()).replaceAll("\\s+", " ") : first;
				}
			}
			System.out.println(line + "\tHikariCP\t" + errors + "\t" + first + "\n" + line + "\tend");
		}
	}
}
